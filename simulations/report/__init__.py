"""What simulated runs amount to: tables, a document, a page and plots, all made of the same figures."""
