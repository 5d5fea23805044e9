"""Ground floor: errors, events, files, processes, the registry. Imports nothing else of this project."""
