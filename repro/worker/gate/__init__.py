"""The parity gate: traces of candidates and of their reference, and the judgement of them."""
