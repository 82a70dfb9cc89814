"""Work of the app that runs outside its process: one forked process per job."""
