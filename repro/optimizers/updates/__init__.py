"""Update rules as torch optimizers that torch does not have; they import torch, so plug-ins import them in methods."""
