"""What a model of events is used for: pretrain, fill, ask, evaluate, finetune."""
