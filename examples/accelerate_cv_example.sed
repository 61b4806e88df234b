# https://github.com/huggingface/accelerate/blob/16cb6eb80dd9aa8b4df1a63ef57863e455d53b83/examples/cv_example.py
# The split becomes two key lists in the working directory. Loaders and schedule are not prepared: the
# sampler deals out to the ranks, and the schedule steps once for each batch of a rank. On several
# ranks the padding of the last validation batch counts, since all ranks have to gather equally many samples.
/^from accelerate import Accelerator/i\
from superdl import Recipe, SuperDataset, SuperSampler
/^    eval_split = /a\
    for name, split in [("train", train_split), ("eval", eval_split)]:\
        rows = [(os.path.basename(file_names[i]), label_to_id[all_labels[i]]) for i in split]\
        np.savetxt(f"{name}.csv", rows, "%s", ",", header="key,label", comments="")
/^    train_dataset = PetsDataset/,/^    )/c\
    train_dataset = SuperDataset(args.data_dir, key_list="train.csv", transform=train_tfm)
/^    eval_dataset = /c\
    eval_dataset = SuperDataset(args.data_dir, Recipe([{"op": "resize", "size": image_size}]), key_list="eval.csv", transform=ToTensor())
/^    train_dataloader = /c\
    how = dict(batch_size=None, num_workers=4, collate_fn=lambda batch: dict(zip(("image", "label"), batch)))\
    train_dataloader = DataLoader(train_dataset, sampler=SuperSampler(train_dataset, batch_size=batch_size, shuffle=True), **how)
s/^    eval_dataloader = .*/    eval_dataloader = DataLoader(eval_dataset, sampler=SuperSampler(eval_dataset, batch_size=batch_size, shuffle=False), **how)/
/^    model, optimizer, train_dataloader/,/^    )/c\
    model, optimizer = accelerator.prepare(model, optimizer)
