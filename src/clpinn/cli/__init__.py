"""The clpinn command."""
