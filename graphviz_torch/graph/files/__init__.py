"""Values as files: columns of JSON, and atomic writing of any file."""
