"""A case and the folder it lives in: exact inputs, readable source, no pickle."""
