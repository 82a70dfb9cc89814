"""Values as files: columns of JSON, the names of older versions, and how any file is written."""
