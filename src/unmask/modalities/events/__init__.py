"""Patient event sequences: masked events over MEDS folders, from raw extract to a scored prediction."""
