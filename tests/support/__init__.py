"""What tests of several folders share and no test module owns."""
