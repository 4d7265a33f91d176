"""The only code that talks to DynamoDB and S3 for us."""
