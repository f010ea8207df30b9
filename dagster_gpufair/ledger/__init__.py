"""What was asked, decided and used: the tables of the Dagster instance's database that are ours."""
