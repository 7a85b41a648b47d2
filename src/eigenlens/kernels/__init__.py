"""Native forms of attention, compiled on the machine they run on."""
