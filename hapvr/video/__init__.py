"""Video files: finding, fetching, probing and sampling them."""
