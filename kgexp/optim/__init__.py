"""Row optimizers: a step on the touched rows only; and learning-rate schedules."""
