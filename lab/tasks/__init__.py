"""What models are trained and measured on. A task draws batches from a torch.Generator: batch(generator, size)."""
