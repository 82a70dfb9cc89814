"""Values as files: columns of JSON, and how any file is written."""
