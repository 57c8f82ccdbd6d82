"""The Plimsoll operator; today it holds the manifest and `plimsoll up`."""
