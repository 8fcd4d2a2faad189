"""What the processes of the serverless plane say to each other: pure models, subjects, and where they are kept."""
