"""Trains small heads that draft for a model (`headrace distill`), on text that the model writes itself.

    prompts ─► text (the engine writes answers) ─► states (the target's hidden states) ─► a trainer (torch)
            ─► folder: config.json, model.safetensors, report.json

`run` puts the steps together; `resume` says what a training may go on from. Only the trainers import torch
(extra `compress`).
"""
