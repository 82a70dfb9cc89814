"""What a bounded drawing shows, whatever it is written in: the steps that formats share."""
