"""Small trained models that a policy asks: when to stop a draft, which drafter suits a prompt."""
