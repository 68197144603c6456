"""A trained model as one folder that scores raw video files anywhere."""
