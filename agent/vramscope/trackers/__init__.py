"""Copies memory figures to the experiment tracker that the program uses, such as W&B, MLflow or TensorBoard."""
