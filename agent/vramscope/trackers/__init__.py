"""Copies memory figures to the experiment tracker that the program uses: W&B, MLflow or TensorBoard."""
