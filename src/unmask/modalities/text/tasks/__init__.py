"""Fine-tuning on top of any text encoder: heads, the loop, and what each task makes of its data and its logits.

- `data`, `conll`, `squad`: files to labelled items. `encoding`: items to examples, packed without padding.
- `model`: a published task head (`families.heads`) on an encoder, and Hugging Face folders of them.
- `task`: what a task brings; `classify`, `tag`, `answer`, `similarity`: the four; `registry`: those and others by name.
- `loop`: what text brings to the fine-tuning loop of `unmask.training.finetune`.
- `scorers`: the metrics, by their official rules. `finetune`: train, predict, evaluate. `glue`: the nine tasks.
- `retrieval`: documents found for queries.
- `zeroshot`, `features`, `recipe`: uses that need no training. `attribution`, `analysis`: why, and where it errs.
"""
