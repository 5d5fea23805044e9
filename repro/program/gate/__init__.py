"""The parity gate of programs: traced steps of variants of a program, compared with those of a reference."""
