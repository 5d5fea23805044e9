"""The harness measured against bare alternatives: ratios in one session, interleaved, with intervals."""
