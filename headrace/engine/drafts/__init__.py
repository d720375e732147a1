"""What drafts for a model: from the setting to proposers.

`wish` reads the setting, `tokens` compares the tokens of two models, `draft_model` finds a draft
model, `early_exit` checks a number of layers, `make` puts proposers together.
"""
