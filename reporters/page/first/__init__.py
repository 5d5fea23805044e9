"""The first screen of a page: the answer, its picture, its arms."""
