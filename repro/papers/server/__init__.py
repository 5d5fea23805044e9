"""The parts of engine `async-server`: the rules of its modes, shards, links, sessions."""
