"""Parts of the measurement `epoch-input`: samples in files or in memory, the shuffle between ranks, the page cache."""
