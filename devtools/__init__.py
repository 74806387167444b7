"""Development aids: servers and scratch homes for tests, the demo and the benchmarks. Not shipped."""
