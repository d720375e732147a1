"""What drafts for a model: from the setting to proposers.

`wish` reads the setting, `tokens` compares the tokens of two models, `draft_model` finds a draft
model, `make` puts proposers together.
"""
