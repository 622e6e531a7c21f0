"""Where the endpoints come from, besides those that the settings name."""
