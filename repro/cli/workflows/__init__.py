"""What commands do if it spans rooms: run and report a suite, calibrate it, reproduce a record. Without click."""
