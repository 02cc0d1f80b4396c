"""What operators do to pipelines that do not run: diagnose, move, copy, verify, resolve and reset them."""
