# https://github.com/mlfoundations/open_clip/blob/89fb801f1e6087880e951fc8354b8a2077b79c6d/src/open_clip_train/data.py
# --dataset-type csv. Captions are tokenised once, into the labels of a key list beside the CSV. On one rank; not
# with NaFlex or captions of varying length.
/^import webdataset as wds/i\
from superdl import SuperDataset, SuperSampler
/^def get_csv_dataset/,/^class SyntheticDataset/{
/^    sampler = DistributedSampler(dataset)/,/^    )/c\
    root = os.path.commonpath(map(os.path.abspath, dataset.images))\
    with open(f'{input_filename}.jsonl', 'w') as rows:\
        for path, caption in zip(dataset.images, dataset.captions):\
            rows.write(json.dumps({'key': os.path.relpath(path, root), 'label': tokenizer([caption])[0].tolist()}) + '\\n')\
    dataset = SuperDataset(root, key_list=rows.name, transform=preprocess_fn, columns={'image': 'images', 'text': 'labels'})\
    sampler = SuperSampler(dataset, batch_size=args.batch_size, shuffle=is_train, drop_last=is_train)\
    dataloader = DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=args.workers, pin_memory=True)
}
