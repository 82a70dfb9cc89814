"""Compare two graphs: their structure, metadata, gradients and recorded values."""
