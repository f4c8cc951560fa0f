"""What a run tells: metrics.jsonl, Weights & Biases, progress."""
