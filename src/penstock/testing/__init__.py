"""For tests: storage that records what a crash may leave, and storage that fails. See docs/testing.md."""
