"""Evaluating a model on items it was not trained on."""
