"""Ground floor: errors, events, files, processes and the registry. Imports nothing else of this project."""
