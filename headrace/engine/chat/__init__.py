"""Conversations: from messages, tools and options to a prompt, and how the answers are taken apart."""
