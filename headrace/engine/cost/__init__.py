"""What a step costs: the roofline of the machine, fitted to what steps took.

Owns the model of a step's time and its error. Must not know HTTP. Reading order: `shape` (what a step has to
do), `fit` (coefficients, followed while running), `model` (seconds of a step), `meter` (the engine's sums and
the error of the prediction), `rehearsal` (the coefficients of a model whose weights are not loaded).
"""
