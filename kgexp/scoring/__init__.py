"""Which candidates each triple is scored against, and the loss over them."""
