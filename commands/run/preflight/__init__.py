"""What is read, planned and refused before anything is paid."""
