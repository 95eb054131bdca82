"""What stands in for the outside world on one machine: the embedded cluster, for `demo`, `dev` and tests."""
