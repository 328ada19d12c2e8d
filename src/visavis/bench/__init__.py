"""`bench`: speed alone: latency, throughput and load, phase by phase, with spread, to and from files."""
