"""Work that spans rooms: run and report a suite, calibrate it, reproduce a record, report several runs."""
